//! Who calls. One layer answers before any body is read, for every service; only the health check is open.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use http::{HeaderMap, Request, Response, Uri};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tonic::{Code, Status};
use tower::{Layer, Service};

use super::error::Problem;

/// Who a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, over the unix socket.
    Unix {
        /// Its user; `None` if the kernel does not say.
        uid: Option<u32>,
    },
    /// Anybody who can reach the port.
    Tcp(SocketAddr),
}

/// Who makes a request, once that is known. An extension of every request that a service sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// As journals and rows name it: `uid:1000`, `token`.
    pub name: String,
    /// Whether it is the daemon's own user on the daemon's own machine.
    pub local: bool,
}

/// Who is let in.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The daemon's own user.
    pub uid: u32,
    /// SHA-256 of the bearer token; without one nobody comes in over TCP.
    pub token: Option<[u8; 32]>,
    /// The names under which the daemon may be addressed over TCP, as `host` or `host:port`.
    pub authorities: Vec<String>,
}

impl Policy {
    /// Returns the digest by which a token is kept.
    pub fn digest(token: &str) -> [u8; 32] {
        Sha256::digest(token.as_bytes()).into()
    }

    /// Decides about a request by its connection and head alone.
    ///
    /// # Errors
    /// Whom to refuse, as a status that names the next step.
    pub fn admit(&self, peer: Option<Peer>, uri: &Uri, headers: &HeaderMap) -> Result<Principal, Status> {
        match peer {
            Some(Peer::Unix { uid: Some(uid) }) if uid == self.uid => Ok(Principal { name: format!("uid:{uid}"), local: true }),
            Some(Peer::Unix { uid }) => {
                let who = uid.map_or_else(|| "an unknown user".to_owned(), |uid| format!("user {uid}"));
                let message = format!("this daemon serves user {} alone, not {who}; start a daemon of your own", self.uid);
                Err(Problem::new(Code::Unauthenticated, "UID_REFUSED", message).status())
            }
            Some(Peer::Tcp(_)) => self.admit_tcp(uri, headers),
            None => Err(Problem::new(Code::Unauthenticated, "PEER_UNKNOWN", "the connection does not say who it comes from").status()),
        }
    }

    fn admit_tcp(&self, uri: &Uri, headers: &HeaderMap) -> Result<Principal, Status> {
        // A browser that was led here by a foreign name resolving to this machine sends that name.
        let authority = uri.authority().map(|authority| authority.as_str()).or_else(|| headers.get("host")?.to_str().ok()).unwrap_or("");
        if !self.authorities.iter().any(|known| known.eq_ignore_ascii_case(authority)) {
            let message = format!("the daemon is not called {authority:?}; address it as one of {}", self.authorities.join(", "));
            return Err(Problem::new(Code::PermissionDenied, "AUTHORITY_REFUSED", message).status());
        }
        let given = headers.get("authorization").and_then(|value| value.to_str().ok()).and_then(bearer);
        let (Some(given), Some(expected)) = (given, self.token) else {
            let message = "a token is needed: send `authorization: Bearer TOKEN`, or set WREN_TOKEN_FILE for wrenctl";
            return Err(Problem::new(Code::Unauthenticated, "TOKEN_MISSING", message).status());
        };
        if bool::from(Self::digest(given).ct_eq(&expected)) {
            return Ok(Principal { name: "token".to_owned(), local: false });
        }
        Err(Problem::new(Code::Unauthenticated, "TOKEN_INVALID", "the token is not the one in the daemon's token_file").status())
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Puts [`Policy`] before every service.
#[derive(Clone, Debug)]
pub struct AuthLayer(Arc<Policy>);

impl AuthLayer {
    /// Returns a layer under this policy.
    pub fn new(policy: Policy) -> Self {
        Self(Arc::new(policy))
    }
}

impl<S> Layer<S> for AuthLayer {
    type Service = Auth<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Auth { policy: self.0.clone(), inner }
    }
}

/// See [`AuthLayer`].
#[derive(Clone, Debug)]
pub struct Auth<S> {
    policy: Arc<Policy>,
    inner: S,
}

impl<S, In, Out> Service<Request<In>> for Auth<S>
where
    S: Service<Request<In>, Response = Response<Out>>,
    Out: Default,
{
    type Response = Response<Out>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<Out>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<In>) -> Self::Future {
        if request.uri().path().starts_with("/grpc.health.v1.Health/") {
            return Either::Left(self.inner.call(request));
        }
        let peer = request.extensions().get::<Peer>().copied();
        match self.policy.admit(peer, request.uri(), request.headers()) {
            Ok(principal) => {
                request.extensions_mut().insert(principal);
                Either::Left(self.inner.call(request))
            }
            Err(status) => Either::Right(ready(Ok(status.into_http()))),
        }
    }
}
