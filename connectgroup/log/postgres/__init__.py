"""A log in a PostgreSQL database, which several coordinators may share."""
