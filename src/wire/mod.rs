//! The generated API and the conversions between it and the kernel. Nothing else here: no policy, no IO.

mod event;
mod limits;
mod model;
mod run;
mod transcript;

pub use event::EventContext;
pub use limits::{Violation, limits, patch};
pub use model::known_model;
pub use run::{failure, outcome, run, state, timestamp, tree, usage};
pub use transcript::{assistant, message, system};

/// The messages and services of `proto/wren/v1/wren.proto`.
#[expect(missing_docs, clippy::all, clippy::allow_attributes, clippy::too_many_lines, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("wren.v1");
    include!(concat!(env!("OUT_DIR"), "/wren.v1.serde.rs"));
}

/// The encoded descriptors of the API, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wren_descriptor.bin"));
