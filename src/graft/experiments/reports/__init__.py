"""Pages, tables and figures made of finished runs."""
