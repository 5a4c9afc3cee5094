"""Ways to damage a file: in its bytes, in the values of its JSON, and in the lines of its TOML."""

from __future__ import annotations

import copy
import json
from random import Random

ODD_VALUES = [None, True, False, 0, 1, -1, 2, 3, 10**6, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.0, 1e308, 5e-324]
ODD_VALUES += ["", "0", "x", "\x1b[31m", "😀", "../..", "cpu", "nan", [], {}, [[]], {"": {}}, [0] * 1000, "y" * 10000]


def damage_bytes(content: bytes, random: Random) -> bytes:
    """Returns other bytes: some changed, cut off, cut out, doubled, moved or put in."""
    if not content:
        return b"x"
    damaged = bytearray(content)
    first, second = sorted(random.randrange(len(content) + 1) for _ in range(2))
    how = random.randrange(9)
    if how <= 2:
        for _ in range(random.choice((1, 1, 1, 2, 5, 50))):
            place = random.randrange(len(damaged))
            damaged[place] = random.choice((damaged[place] ^ 1 << random.randrange(8), random.randrange(256), ord("0")))
    elif how == 3:
        del damaged[first:]
    elif how == 4:
        del damaged[first : min(second, first + 100)]
    elif how == 5:
        damaged[first:first] = damaged[first : min(second, first + 100)] or b"\n"
    elif how == 6:
        damaged[first:second] = bytes(second - first)
    elif how == 7:
        damaged[first:first] = random.randbytes(random.choice((1, 8, 1000)))
    else:
        damaged = damaged[second:] + damaged[:first]
    return bytes(damaged)


def damage_json(content: bytes, random: Random) -> bytes:
    """Returns JSON in which a value is another, is gone, has another name, or was swapped with one elsewhere."""
    lines = content.decode().splitlines()
    place = random.randrange(len(lines)) if len(lines) > 1 and lines[0].endswith("}") else None
    text = content.decode() if place is None else lines[place]
    value = _damaged_value(json.loads(text), random)
    if place is None:
        return json.dumps(value).encode()
    lines[place] = json.dumps(value)
    if random.random() < 0.2:
        other = random.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    return ("\n".join(lines) + "\n").encode()


def _places(value, place=()):
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*place, key)
            yield from _places(value[key], (*place, key))


def _at(value, place):
    for key in place:
        value = value[key]
    return value


def _damaged_value(value, random):
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places or random.random() < 0.03:
        return random.choice(ODD_VALUES)
    *way, key = random.choice(places)
    holder = _at(value, way)
    how = random.randrange(5)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[random.choice((f"{key}x", "", "round", "checksum"))] = holder.pop(key)
    elif how == 2:
        *other_way, other_key = random.choice(places)
        try:
            other = _at(value, other_way)
            holder[key], other[other_key] = other[other_key], holder[key]
            json.dumps(value)
        except (KeyError, IndexError, TypeError, ValueError):  # one lay within the other
            return random.choice(ODD_VALUES)
    elif how == 3 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] += random.choice((1, -1, 0.5, 1e-9))
    else:
        holder[key] = copy.deepcopy(random.choice(ODD_VALUES))
    if random.random() < 0.02:
        holder["deep" if isinstance(holder, dict) else slice(0)] = json.loads("[" * 900 + "]" * 900)
    return value


def damage_toml(content: bytes, random: Random) -> bytes:
    """Returns settings in which a line is another, is gone, or is there twice."""
    lines = content.decode().splitlines()
    place = random.randrange(len(lines))
    name = lines[place].partition(" = ")[0]
    odd = random.choice([value for value in ODD_VALUES if value is not None and value != {"": {}}])
    text = json.dumps(odd, ensure_ascii=False).replace("\\u001b", "\\u001B") if odd != {} else "{}"
    how = random.randrange(6)
    if how == 0:
        del lines[place]
    elif how == 1:
        lines.insert(place, lines[random.randrange(len(lines))])
    elif how == 2:
        lines[place] = f"{name} = {'[' * 3000}"
    elif how == 3:
        lines.insert(place, f"{random.choice(('threads', 'clients', 'width', 'learning_rate', 'dreams'))} = {text}")
    else:
        lines[place] = f"{name} = {text}"
    return ("\n".join(lines) + "\n").encode()
