"""Who may ask: API keys, tokens of a company's issuer and client certificates, checked in one place."""
