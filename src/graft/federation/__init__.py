"""What a federation is: methods, a server, clients, fleets and the session that plays rounds."""
