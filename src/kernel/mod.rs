//! The kernel: what a run is, what may happen to it, what it may spend and what it does next.
//!
//! Everything here is pure. There is no IO, no clock, no logging, and no id is made at random: time, ids and the
//! state of the world come in as arguments. The rest of the crate performs what the kernel decides.
//!
//! Reading order: [`message`] (what is said), [`agent`] (who says it), [`event`] (what happened), [`ledger`] (what it
//! cost), [`summary`] (what a row of a list shows), [`run`] (the fold of a journal), [`next`] (the loop's decision).

#![deny(clippy::wildcard_enum_match_arm)]

pub mod agent;
pub mod event;
pub mod ledger;
pub mod message;
pub mod next;
pub mod run;
mod size;
pub mod summary;

pub use agent::{AgentSpec, Effect, LimitsPatch, ModelSpec, OnFailure, Scripted, ScriptedTool, SpawnSpec, ToolSource, ToolSpec};
pub use event::{Event, Recorded};
pub use ledger::{Account, Limits, Price, Reservation, Totals};
pub use message::{Args, AssistantMessage, Call, CallId, Message, Reply, ReplyCall, Request, RunId, Stop, ToolResult, Usage};
pub use next::{Around, Next, next};
pub use run::Run;
pub use summary::{Outcome, State, Summary};
