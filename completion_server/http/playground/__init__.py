"""The page at `/`: an editor in the browser with completions over a WebSocket, and live figures of the server."""
