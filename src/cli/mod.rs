//! The command line: commands to requests, events to lines. It talks to a daemon over gRPC alone.
