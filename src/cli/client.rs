//! The connection to a daemon: unix socket or TCP, the token, and the generated clients over it.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::address::Address;
use super::error::Error;
use super::exit;
use crate::wire::v1::run_service_client::RunServiceClient;
use crate::wire::v1::system_service_client::SystemServiceClient;
use crate::wire::v1::workflow_service_client::WorkflowServiceClient;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that died without a word (a laptop asleep, a lost network) is noticed after two of these.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// A trace of a large tree is one answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A channel that shows the token.
pub type Line = InterceptedService<Channel, Bearer>;

/// Adds the bearer token to every request.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// The clients of one daemon.
#[derive(Clone)]
pub struct Client {
    /// Where the daemon is, for messages.
    pub address: Address,
    /// Whether the daemon ends with this process.
    is_own_daemon: bool,
    /// Runs.
    pub runs: RunServiceClient<Line>,
    /// Workflows.
    pub workflows: WorkflowServiceClient<Line>,
    /// The daemon itself.
    pub system: SystemServiceClient<Line>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Nobody answers there, or the token cannot be sent.
    pub async fn connect(address: Address, token: Option<&str>, is_own_daemon: bool) -> Result<Self, Error> {
        let bearer = match token.map(str::trim).filter(|token| !token.is_empty()) {
            None => None,
            Some(token) => {
                let mut value: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(|_| {
                    Error::new(exit::AUTH, "the token holds characters that cannot be sent; it must be plain ASCII on one line")
                })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let channel = channel(&address).await?;
        let line = InterceptedService::new(channel, Bearer(bearer));
        Ok(Self {
            runs: RunServiceClient::new(line.clone()).max_decoding_message_size(ANSWER_BYTES_MAX),
            workflows: WorkflowServiceClient::new(line.clone()).max_decoding_message_size(ANSWER_BYTES_MAX),
            system: SystemServiceClient::new(line).max_decoding_message_size(ANSWER_BYTES_MAX),
            address,
            is_own_daemon,
        })
    }

    /// Returns an error of this daemon.
    pub fn error(&self, status: &Status) -> Error {
        let error = Error::status(&self.address, status);
        if self.is_own_daemon { error.of_own_daemon() } else { error }
    }
}

async fn channel(address: &Address) -> Result<Channel, Error> {
    let unreachable = |error: tonic::transport::Error| Error::unreachable(address, &deepest(&error));
    match address {
        Address::Tcp(host_port) => {
            let endpoint = Endpoint::from_shared(format!("http://{host_port}")).map_err(unreachable)?;
            configured(endpoint).connect().await.map_err(unreachable)
        }
        Address::Unix(path) => {
            let path = path.clone();
            let connector = tower::service_fn(move |_: http::Uri| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
            });
            // The host is not looked up: the connector goes to the socket.
            configured(Endpoint::from_static("http://localhost")).connect_with_connector(connector).await.map_err(unreachable)
        }
    }
}

fn configured(endpoint: Endpoint) -> Endpoint {
    endpoint.connect_timeout(CONNECT_TIMEOUT).http2_keep_alive_interval(KEEP_ALIVE).keep_alive_timeout(KEEP_ALIVE)
}

fn deepest(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
