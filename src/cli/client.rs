//! The connection to a daemon.

use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::error::Error;
use crate::wire::v1::run_service_client::RunServiceClient;
use crate::wire::v1::system_service_client::SystemServiceClient;
use crate::wire::v1::workflow_service_client::WorkflowServiceClient;

/// Bytes of one answer at most.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

type Channelled = InterceptedService<Channel, Bearer>;

/// A connected daemon.
#[derive(Clone)]
pub struct Client {
    channel: Channelled,
}

/// Puts the bearer token on every request.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<tonic::metadata::Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The address, what is wrong, and what to do.
    pub async fn connect(address: &str, token_file: Option<&Path>) -> Result<Self, Error> {
        let unreachable = |why: String| {
            Error::new(format!(
                "error: no daemon at {address}: {why}\nhint: start one with `wrend`, name another with --address, or use --local"
            ))
        };
        let channel = if let Some(path) = address.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            let connector = tower::service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            Endpoint::from_static("http://localhost").connect_with_connector(connector).await
        } else if let Some(host) = address.strip_prefix("tcp:") {
            let endpoint = Endpoint::from_shared(format!("http://{host}"))
                .map_err(|error| Error::usage(format!("error: address {address:?}: {error}")))?;
            endpoint.connect().await
        } else {
            return Err(Error::usage(format!("error: address {address:?} must be unix:PATH or tcp:HOST:PORT")));
        };
        let channel = channel.map_err(|error| unreachable(root_cause(&error)))?;
        Ok(Self { channel: InterceptedService::new(channel, Bearer(token(token_file)?)) })
    }

    /// The run service.
    pub fn runs(&self) -> RunServiceClient<Channelled> {
        RunServiceClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// The workflow service.
    pub fn workflows(&self) -> WorkflowServiceClient<Channelled> {
        WorkflowServiceClient::new(self.channel.clone())
    }

    /// The system service.
    pub fn system(&self) -> SystemServiceClient<Channelled> {
        SystemServiceClient::new(self.channel.clone())
    }
}

fn token(file: Option<&Path>) -> Result<Option<MetadataValue<tonic::metadata::Ascii>>, Error> {
    let text = match (file, std::env::var("WREN_TOKEN")) {
        (Some(file), _) => {
            std::fs::read_to_string(file).map_err(|error| Error::new(format!("error: token file {}: {error}", file.display())))?
        }
        (None, Ok(token)) => token,
        (None, Err(_)) => return Ok(None),
    };
    let mut value: MetadataValue<_> =
        format!("Bearer {}", text.trim()).parse().map_err(|_| Error::new("error: the token has characters that no header may have"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
