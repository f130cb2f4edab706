//! The server: which services stand behind which layer, and what one client may take of the machine.

use std::future::Future;
use std::time::Duration;

use tonic::transport::Server;

use super::Api;
use super::auth::{AuthLayer, Policy};
use super::listen::Listener;
use crate::wire::DESCRIPTORS;
use crate::wire::v1::run_service_server::RunServiceServer;
use crate::wire::v1::system_service_server::SystemServiceServer;
use crate::wire::v1::workflow_service_server::WorkflowServiceServer;

const DECODE_BYTES_MAX: usize = 4 * 1024 * 1024;
const ENCODE_BYTES_MAX: usize = 16 * 1024 * 1024;
const STREAMS_PER_CONNECTION_MAX: u32 = 128;
const REQUESTS_PER_CONNECTION_MAX: usize = 64;
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
const RESETS_PENDING_MAX: usize = 20;

/// Why the server stopped.
#[derive(Debug, thiserror::Error)]
#[error("the server failed: {0}")]
pub struct Error(String);

/// Serves until `drained` is over: when `shutdown` is, health says NOT_SERVING; then `drain` runs while requests are
/// still answered; then open streams are ended and the connections closed.
///
/// # Errors
/// A failure of the server itself.
pub async fn serve(
    api: Api,
    listener: Listener,
    policy: Policy,
    shutdown: impl Future<Output = ()>,
    drain: impl Future<Output = ()>,
) -> Result<(), Error> {
    let is_local = listener.is_unix();
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<RunServiceServer<Api>>().await;
    health.set_serving::<WorkflowServiceServer<Api>>().await;
    health.set_serving::<SystemServiceServer<Api>>().await;
    let fail = |error: &dyn std::fmt::Display| Error(error.to_string());
    let reflection = || {
        let builder = tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Over TCP the API's shape is told to nobody: those clients bring the proto.
    let v1 = is_local.then(|| reflection().build_v1()).transpose().map_err(|error| fail(&error))?;
    let v1alpha = is_local.then(|| reflection().build_v1alpha()).transpose().map_err(|error| fail(&error))?;
    let closing = api.closing.clone();
    let draining = api.runtime.clone();
    let signal = async {
        shutdown.await;
        health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        health.set_not_serving::<RunServiceServer<Api>>().await;
        health.set_not_serving::<WorkflowServiceServer<Api>>().await;
        health.set_not_serving::<SystemServiceServer<Api>>().await;
        tracing::info!(runs = draining.running(), "draining");
        drain.await;
        closing.cancel();
    };
    limited(is_local)
        .layer(AuthLayer::new(policy))
        .add_service(health_service)
        .add_optional_service(v1)
        .add_optional_service(v1alpha)
        .add_service(
            RunServiceServer::new(api.clone()).max_decoding_message_size(DECODE_BYTES_MAX).max_encoding_message_size(ENCODE_BYTES_MAX),
        )
        .add_service(WorkflowServiceServer::new(api.clone()).max_decoding_message_size(DECODE_BYTES_MAX))
        .add_service(SystemServiceServer::new(api))
        .serve_with_incoming_shutdown(listener.incoming(), signal)
        .await
        .map_err(|error| fail(&error))
}

fn limited(is_local: bool) -> Server {
    let server = Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION_MAX)
        .load_shed(true)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)));
    if is_local {
        return server;
    }
    server.max_connection_age(Duration::from_secs(3600)).max_connection_age_grace(Duration::from_secs(60))
}
