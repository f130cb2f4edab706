//! Tests of the telemetry.
