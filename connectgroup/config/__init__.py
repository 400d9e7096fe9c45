"""Settings, validated by pydantic."""
