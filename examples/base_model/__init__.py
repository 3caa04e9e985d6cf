"""How the embedded base models are made."""
