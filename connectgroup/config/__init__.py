"""Settings, checked by pydantic."""
