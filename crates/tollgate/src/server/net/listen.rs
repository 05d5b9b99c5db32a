//! Addresses and listeners: TCP or a Unix socket, for every front end.

use super::authority_io::AuthorityIo;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port; port 0 picks a free one.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// A bound listener.
#[derive(Debug)]
pub struct Listener(ListenerKind);

#[derive(Debug)]
enum ListenerKind {
    Tcp(TcpListener),
    /// The file is removed before the listener closes: a successor that sees the closed socket would otherwise lose its own file.
    Unix(SocketFile, UnixListener),
}

/// Removes the socket's file with the listener.
#[derive(Debug)]
struct SocketFile(PathBuf);

/// One connection.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(AuthorityIo<UnixStream>),
}

impl Address {
    /// The port; a socket in the file system has none.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(address) => Some(address.port()),
            Self::Unix(_) => None,
        }
    }

    /// True if only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl Stream {
    /// The address of the client; 127.0.0.1 for a Unix socket.
    ///
    /// # Errors
    /// The error of the system: a connection that is closed already has no peer.
    pub fn peer(&self) -> io::Result<IpAddr> {
        match self {
            Self::Tcp(stream) => Ok(stream.peer_addr()?.ip()),
            Self::Unix(_) => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        }
    }
}

impl Listener {
    /// Binds an address.
    ///
    /// A stale Unix socket is replaced; one with a listener is in use.
    ///
    /// # Errors
    /// The error of the system, such as a port in use.
    pub async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => Ok(Self(ListenerKind::Tcp(TcpListener::bind(address).await?))),
            Address::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale_socket(path).await => {
                        std::fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    bound => bound?,
                };
                Ok(Self(ListenerKind::Unix(SocketFile(path.clone()), listener)))
            }
        }
    }

    /// The bound address, with the actual port.
    ///
    /// # Errors
    /// The error of the system.
    pub fn address(&self) -> io::Result<Address> {
        match &self.0 {
            ListenerKind::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            ListenerKind::Unix(file, _) => Ok(Address::Unix(file.0.clone())),
        }
    }

    /// Accepts the next connection. Errors do not end it: a connection that was reset in the backlog is skipped, and on a
    /// shortage of file descriptors it retries after a backoff.
    pub async fn accept(&self) -> Stream {
        loop {
            let accepted = match &self.0 {
                ListenerKind::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
                ListenerKind::Unix(_, listener) => {
                    let accepted = listener.accept().await;
                    accepted.map(|(stream, _)| Stream::Unix(AuthorityIo::new(stream)))
                }
            };
            match accepted {
                Ok(stream) => {
                    if let Stream::Tcp(stream) = &stream {
                        // An error here means the connection is closed, which a read reports.
                        let _ = stream.set_nodelay(true);
                    }
                    return stream;
                }
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "accepting connections failed; retrying");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self(ListenerKind::Tcp(listener))
    }
}

/// True if a path is a socket without a listener. A file that is no socket refuses connections too, and is not ours to
/// remove.
async fn is_stale_socket(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket
        && matches!(UnixStream::connect(path).await, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// The wait after an error such as a shortage of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may have been removed already.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err(AddressError)
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            let port: u16 = port.parse().map_err(|_| AddressError)?;
            return Ok(Self::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        }
        text.parse().map(Self::Tcp).map_err(|_| AddressError)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The error of a text that is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressError;

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not an address; write an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080, or unix:/path",
        )
    }
}

impl std::error::Error for AddressError {}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in ["127.0.0.1:8080", "[::1]:0", "0.0.0.0:80", "unix:/run/tollgate.sock"] {
            assert_eq!(
                text.parse::<Address>().map(|address| address.to_string()),
                Ok(text.to_owned())
            );
        }
        assert_eq!("localhost:1".parse(), "127.0.0.1:1".parse::<Address>());
        for text in [
            "",
            "8080",
            ":8080",
            "example.org:80",
            "127.0.0.1",
            "127.0.0.1:65536",
            "unix:",
        ] {
            assert_eq!(text.parse::<Address>(), Err(AddressError), "{text}");
        }
    }

    #[test]
    fn loopback_and_sockets_are_local() {
        for (text, local) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("unix:/run/tollgate.sock", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().is_local(), local, "{text}");
        }
    }
}
