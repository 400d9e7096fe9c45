"""The shared data types: units, messages, records. Imports no other package of the project."""
