//! What no peer is measured at: large trees, many runs at rest, restarts, kills and a soak.

use serde_json::Value;

use crate::Result;
use crate::stub::Stub;

pub async fn cancel(_stub: &Stub) -> Result<Value> {
    Err("not built".into())
}
pub async fn start(_stub: &Stub) -> Result<Value> {
    Err("not built".into())
}
pub async fn suspended(_stub: &Stub) -> Result<Value> {
    Err("not built".into())
}
pub async fn soak(_stub: &Stub) -> Result<Value> {
    Err("not built".into())
}
pub async fn kills(_stub: &Stub) -> Result<Value> {
    Err("not built".into())
}
