//! Where the daemon is reached: addresses, the socket file and who may own it, and the connections that come in.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::Connected;

use super::auth::Peer;

const CONNECTIONS_MAX: usize = 256;
/// How long accepting waits for a file handle.
const HANDLES_WAIT: Duration = Duration::from_millis(100);

/// Where a daemon is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket file.
    Unix(PathBuf),
    /// A host and port.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path.strip_prefix("//").unwrap_or(path)))),
            Some(("tcp", host)) => {
                let host = host.strip_prefix("//").unwrap_or(host).replace("localhost:", "127.0.0.1:");
                host.parse().map(Self::Tcp).map_err(|_| format!("{text:?} has no IP address and port; write tcp:127.0.0.1:7777"))
            }
            _ => Err(format!("{text:?} is no address; write unix:PATH or tcp:HOST:PORT")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Use the daemon that is there, or another address.
    #[error("a daemon already serves on {0}; use it, stop it, or start this one with another --listen")]
    InUse(Address),
    /// Mend what it says.
    #[error("cannot listen on {address}: {why}")]
    Refused {
        /// The address.
        address: Address,
        /// Why, and what to do.
        why: String,
    },
}

/// A bound address. Its socket file goes away with it.
pub struct Listener {
    address: Address,
    socket: Socket,
    _lock: Option<Lock>,
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Held as long as the socket is: two daemons that start at once must not take the socket from each other.
struct Lock {
    _file: File,
    socket: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // What cannot be removed is found stale by the next daemon.
        let _ = fs::remove_file(&self.socket);
    }
}

impl Listener {
    /// Binds an address.
    ///
    /// # Errors
    /// An address that is in use, not safe, or not to be had.
    pub async fn bind(address: &Address) -> Result<Self, Error> {
        match address {
            Address::Unix(path) => bind_unix(address, path),
            Address::Tcp(host) => {
                let refused = |why: String| Error::Refused { address: address.clone(), why };
                if !host.ip().is_loopback() {
                    let why =
                        "without TLS only a loopback address is served; listen on 127.0.0.1 and put a TLS proxy or an SSH tunnel in front";
                    return Err(refused(why.to_owned()));
                }
                let socket = TcpListener::bind(host).await.map_err(|error| match error.kind() {
                    io::ErrorKind::AddrInUse => Error::InUse(address.clone()),
                    _ => refused(error.to_string()),
                })?;
                let bound = socket.local_addr().map_err(|error| refused(error.to_string()))?;
                Ok(Self { address: Address::Tcp(bound), socket: Socket::Tcp(socket), _lock: None })
            }
        }
    }

    /// Returns where it is reached; for port 0 the port that was given.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether it is a socket file.
    pub fn is_unix(&self) -> bool {
        matches!(self.socket, Socket::Unix(_))
    }

    /// Returns the connections, of which no more than a bounded number are open at once.
    pub fn incoming(self) -> impl Stream<Item = io::Result<Connection>> {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        stream::unfold((self, permits), |(listener, permits)| async move {
            let permit = permits.clone().acquire_owned().await.ok()?;
            let accepted = listener.accept_patiently().await;
            Some((accepted.map(|(io, peer)| Connection { io, peer, _permit: permit }), (listener, permits)))
        })
    }

    /// Accepts. While the process or the system has no file handles left it waits: the server would ask again at once, for
    /// ever, and clients wait in the socket's own queue until some come free.
    async fn accept_patiently(&self) -> io::Result<(Io, Peer)> {
        let mut told = false;
        loop {
            match self.accept().await {
                Err(error) if is_out_of_handles(&error) => {
                    if !told {
                        tracing::error!(%error, "no connection can be accepted for now; if the limit of open files is reached, raise it (ulimit -n)");
                        told = true;
                    }
                    tokio::time::sleep(HANDLES_WAIT).await;
                }
                accepted => return accepted,
            }
        }
    }

    async fn accept(&self) -> io::Result<(Io, Peer)> {
        Ok(match &self.socket {
            Socket::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                let uid = stream.peer_cred().ok().map(|cred| cred.uid());
                (Io::Unix(stream), Peer::Unix { uid })
            }
            Socket::Tcp(socket) => {
                let (stream, from) = socket.accept().await?;
                stream.set_nodelay(true)?;
                (Io::Tcp(stream), Peer::Tcp(from))
            }
        })
    }
}

fn is_out_of_handles(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

fn bind_unix(address: &Address, path: &Path) -> Result<Listener, Error> {
    let refused = |why: String| Error::Refused { address: address.clone(), why };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| {
        refused(format!("its directory {} cannot be made: {error}; choose another with --listen unix:PATH", directory.display()))
    })?;
    private(directory).map_err(&refused)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&name);
    let file = file.map_err(|error| refused(format!("{} cannot be written: {error}", Path::new(&name).display())))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Err(Error::InUse(address.clone())),
        Err(fs::TryLockError::Error(error)) => return Err(refused(format!("its lock file cannot be locked: {error}"))),
    }
    remove_stale(address, path)?;
    let socket = UnixListener::bind(path).map_err(|error| refused(format!("{error}; a socket's path has at most 107 bytes")))?;
    // Between bind and here another user could connect, but the peer's uid is checked on every request all the same.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(|error| refused(error.to_string()))?;
    let lock = Lock { _file: file, socket: path.to_owned() };
    Ok(Listener { address: address.clone(), socket: Socket::Unix(socket), _lock: Some(lock) })
}

/// Refuses a directory in which others could put a socket in the daemon's place.
fn private(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    let found = fs::metadata(directory).map_err(|error| format!("its directory {shown} cannot be read: {error}"))?;
    let own = rustix::process::geteuid().as_raw();
    let mode = found.mode();
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(format!("others may write to its directory {shown}; run `chmod go-w {shown}` or choose another"));
    }
    if found.uid() != own && found.uid() != 0 {
        return Err(format!("its directory {shown} belongs to user {}, not to {own}; choose another", found.uid()));
    }
    Ok(())
}

fn remove_stale(address: &Address, path: &Path) -> Result<(), Error> {
    let refused = |why: String| Error::Refused { address: address.clone(), why };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(error.to_string())),
    };
    if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) {
        return Err(refused("a file that is no socket is in its place; remove it or choose another path".to_owned()));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused(format!("a socket of user {} is in its place; choose another path", found.uid())));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(Error::InUse(address.clone())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| refused(format!("the stale socket cannot be removed: {error}")))
        }
        Err(error) => Err(refused(format!("a socket is in its place and does not answer: {error}"))),
    }
}

/// One client's connection.
pub struct Connection {
    io: Io,
    peer: Peer,
    _permit: OwnedSemaphorePermit,
}

enum Io {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Io::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Io::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
