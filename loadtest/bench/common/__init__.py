"""Parts that several benchmarks share: texts, the server as a child process, closed-loop blocks, figures."""
