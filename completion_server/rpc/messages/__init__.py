"""Messages: raw bytes are scanned before they are parsed, and translated to the core's requests and back."""
