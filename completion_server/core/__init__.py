"""The types that all packages of the server share: requests, events, outcomes, errors, clocks. Imports none of them."""
