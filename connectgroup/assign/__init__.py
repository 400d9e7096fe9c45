"""The API for assignor authors, and the code that runs an assignor."""
