//! Where a daemon is reached: `unix:PATH` or `tcp:HOST:PORT`, and where to look if nobody says.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "use unix:PATH or tcp:HOST:PORT";
        match text.split_once(':') {
            Some(("unix", "")) => Err(format!("{text:?} names no path; {form}")),
            Some(("unix", path)) => Ok(Self::Unix(PathBuf::from(path))),
            Some(("tcp", rest)) => match rest.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(Self::Tcp(rest.to_owned())),
                _ => Err(format!("{text:?} has no host and port; {form}")),
            },
            _ => Err(format!("{text:?} is no address; {form}")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host_port) => write!(f, "tcp:{host_port}"),
        }
    }
}

impl Address {
    /// Returns where a daemon of this user listens unless told otherwise: the socket in `$XDG_RUNTIME_DIR/wren`, or in
    /// the data directory. Where both are possible, the one that exists: the daemon may have been started by a service
    /// that has no runtime directory.
    ///
    /// # Errors
    /// No variable says where that could be.
    pub fn usual(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let runtime = absolute("XDG_RUNTIME_DIR").map(|path| path.join("wren"));
        let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share"))).map(|path| path.join("wren"));
        let places: Vec<PathBuf> = runtime.into_iter().chain(data).map(|path| path.join("wrend.sock")).collect();
        let found = places.iter().find(|path| path.exists()).or(places.first()).cloned();
        found.map(Self::Unix).ok_or_else(|| {
            "none of XDG_RUNTIME_DIR, XDG_DATA_HOME and HOME is set; say where the daemon is with --address unix:PATH".to_owned()
        })
    }
}
