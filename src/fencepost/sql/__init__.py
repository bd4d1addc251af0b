"""SQL: the tables, how they come into a database, and how one is opened. Needs the extra `sql`."""
