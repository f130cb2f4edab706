//! The daemon's configuration: one struct made of each room's own.
