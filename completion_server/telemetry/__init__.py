"""What operators see: metrics and logs. Parts emit events; only the composition root wires them to this room."""
