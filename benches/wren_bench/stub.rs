//! The scripted provider that runs are driven against, and what it counted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Result;

/// How long it may take until a count is reached.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Stub {
    address: String,
}

impl Stub {
    pub fn from_environment() -> Result<Self> {
        let address = std::env::var("STUB").map_err(|_| "STUB must be the address (HOST:PORT) of a scripted provider")?;
        Ok(Self { address })
    }

    pub fn at(address: &str) -> Self {
        Self { address: address.to_owned() }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn stats(&self) -> Result<Value> {
        self.ask("GET", "/stats")
    }

    pub fn reset(&self) -> Result<()> {
        self.ask("POST", "/reset").map(drop)
    }

    /// Waits until so many requests are in flight.
    pub fn until_in_flight(&self, count: i64) -> Result<Value> {
        let began = Instant::now();
        loop {
            let stats = self.stats()?;
            if stats["in_flight"] == count {
                return Ok(stats);
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("{} requests are in flight and {count} were awaited", stats["in_flight"]).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ask(&self, method: &str, path: &str) -> Result<Value> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(stream, "{method} {path} HTTP/1.1\r\nhost: stub\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let body = answer.split_once("\r\n\r\n").ok_or("the stub answered without a body")?.1;
        // The body may be chunked; the object in it is what counts.
        let (start, end) = (body.find('{').ok_or("no object")?, body.rfind('}').ok_or("no object")?);
        Ok(serde_json::from_str(&body[start..=end])?)
    }
}
