//! Every store answers alike.
