//! The gRPC edge: who calls, what they may, and every error as a status.
