//! The HTTP server: one thread, named "http", with a single-threaded tokio runtime.
//!
//! Connections are limited. A connection above the limit gets a 503 response, as long as there are few of those;
//! further ones are closed. [`HttpServer::drainer`] ends waiting requests before the shards shut down, and
//! [`HttpServer::end`] closes the listener after that, so that clients get a response to every request that was
//! accepted.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioTimer;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::app::{App, Phase};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::routes::router;
use crate::settings::Settings;
use crate::socket::{BufferedLeases, Socket};

/// Longest wait for connections to finish at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Size of a connection's read buffer, which bounds the head of a request, in bytes.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Connections above the limit that get a 503 response at the same time. Further ones are closed without a response.
pub const REJECTIONS_MAX: usize = 64;
/// Longest time for such a response.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after `accept` failed, for example because the process has no file descriptors left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A bound address that is not served yet.
#[derive(Debug)]
pub struct Bound(TcpListener);

impl Bound {
    /// Binds `address`.
    ///
    /// # Errors
    /// If the operating system cannot bind it.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Serves the address on a new thread.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn start(self, settings: Settings, broker: Arc<dyn Broker>) -> io::Result<HttpServer> {
        let address = self.0.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (sender, phase) = watch::channel(Phase::Serving);
        let serve = move || {
            let app = App::new(broker, settings, phase.clone());
            let outcome = runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(self.0)?;
                serve(&listener, settings, &router(app), phase).await;
                Ok::<(), io::Error>(())
            });
            if let Err(error) = outcome {
                log::error!("http: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("http".into()).spawn(serve)?;
        Ok(HttpServer { address, phase: Arc::new(sender), thread })
    }
}

/// A running server.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    phase: Arc<watch::Sender<Phase>>,
    thread: JoinHandle<()>,
}

impl HttpServer {
    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a function that starts draining: readiness checks fail from then on, and requests that wait for messages
    /// get a response. The function may be called at any time, on any thread.
    pub fn drainer(&self) -> impl Fn() + Send + Sync + 'static {
        let phase = Arc::clone(&self.phase);
        move || advance(&phase, Phase::Draining)
    }

    /// Stops the server. Requests in flight have two seconds to finish.
    pub fn end(self) {
        advance(&self.phase, Phase::Stopped);
        if self.thread.join().is_err() {
            log::error!("http: the server thread panicked");
        }
    }
}

fn advance(phase: &watch::Sender<Phase>, to: Phase) {
    phase.send_modify(|phase| *phase = (*phase).max(to));
}

async fn serve(
    listener: &tokio::net::TcpListener,
    settings: Settings,
    router: &Router,
    phase: watch::Receiver<Phase>,
) {
    let mut connections = JoinSet::new();
    let mut rejections = JoinSet::new();
    let mut stopped = std::pin::pin!(Phase::Stopped.reached(phase.clone()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            Some(_) = rejections.join_next() => continue,
            () = &mut stopped => break,
        };
        match accepted {
            Ok((stream, _)) if connections.len() < settings.connections_max => {
                connections.spawn(connection(stream, settings.io_timeout, router.clone(), phase.clone()));
            }
            Ok((stream, _)) if rejections.len() < REJECTIONS_MAX => {
                rejections.spawn(timeout(REJECTION_TIMEOUT, reject(stream)));
            }
            Ok(_) => {}
            Err(error) => {
                log::warn!("http: accept failed: {error}");
                sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
        log::info!("http: closed {} connections with requests in flight", connections.len());
    }
}

async fn connection(stream: TcpStream, io_timeout: Duration, router: Router, phase: watch::Receiver<Phase>) {
    // Each response is written at once, so Nagle's algorithm only delays it.
    if let Err(error) = stream.set_nodelay(true) {
        log::debug!("http: {error}");
    }
    let buffered = BufferedLeases::default();
    let socket = Socket::new(stream, buffered.clone(), io_timeout);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(buffered.clone());
        router.call(request.map(Body::new))
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(io_timeout).max_buf_size(BUFFER_BYTES_MAX);
    let mut connection = std::pin::pin!(builder.serve_connection(socket, service));
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = Phase::Stopped.reached(phase) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        log::debug!("http: connection failed: {error}");
    }
}

/// Sends a 503 response without reading a request, then reads until the client closes: closing a socket with unread
/// input resets the connection, and the client might lose the response.
async fn reject(mut stream: TcpStream) -> io::Result<()> {
    let body = Problem::too_many_connections().json().to_string();
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json";
    let len = body.len();
    let answer =
        format!("{head}\r\ncontent-length: {len}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).await? > 0 {}
    Ok(())
}
