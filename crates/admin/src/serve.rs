//! The thread "control": it accepts connections, serves them, and ends.

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
use crate::problem::Problem;
use crate::routes::router;
use crate::seam::Broker;
use crate::wire::{Buffered, Socket};

/// Longest time that connections have to end when the process does.
const END: Duration = Duration::from_secs(2);
/// Largest head of a request, and what else of a connection's input is read ahead, bytes.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Connections beyond those allowed that are told so at once; others are closed without a word.
const TURNED_AWAY_MAX: usize = 64;
/// Longest time that this takes.
const TURNED_AWAY: Duration = Duration::from_secs(1);
/// Time to wait when the system has no more connections to give.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// What the operations door is told at the start.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Largest body of a request, bytes. Eight times as much is in memory at once, at most.
    pub body_bytes_max: usize,
    /// Connections at once.
    pub connections_max: usize,
    /// Longest time for the head of a request to come, from the answer before it on; for a body to come; and for which a
    /// client may take nothing of an answer.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { body_bytes_max: 8 * 1024 * 1024, connections_max: 256, patience: Duration::from_secs(30) }
    }
}

/// An address that is taken, and not served yet.
#[derive(Debug)]
pub struct Bound(TcpListener);

impl Bound {
    /// Takes an address.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Serves it, on a thread of its own.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(self, settings: Settings, broker: Arc<dyn Broker>) -> io::Result<Control> {
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
        let thread = std::thread::Builder::new().name("control".into()).spawn(serve)?;
        Ok(Control { address, phase: Arc::new(sender), thread })
    }
}

/// A door that is open.
#[derive(Debug)]
pub struct Control {
    address: SocketAddr,
    phase: Arc<watch::Sender<Phase>>,
    thread: JoinHandle<()>,
}

impl Control {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says that the broker is about to end: it is not ready any more, and whoever waits for messages is answered. May
    /// be called at any time, from any thread.
    pub fn drainer(&self) -> impl Fn() + Send + Sync + 'static {
        let phase = Arc::clone(&self.phase);
        move || advance(&phase, Phase::Draining)
    }

    /// Closes the door. What is under way has two seconds to be answered.
    pub fn end(self) {
        advance(&self.phase, Phase::Ended);
        if self.thread.join().is_err() {
            log::error!("http: the thread has failed");
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
    let mut turned_away = JoinSet::new();
    let mut end = std::pin::pin!(Phase::Ended.reached(phase.clone()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            Some(_) = turned_away.join_next() => continue,
            () = &mut end => break,
        };
        match accepted {
            Ok((stream, _)) if connections.len() < settings.connections_max => {
                connections.spawn(connection(stream, settings.patience, router.clone(), phase.clone()));
            }
            Ok((stream, _)) if turned_away.len() < TURNED_AWAY_MAX => {
                turned_away.spawn(timeout(TURNED_AWAY, turn_away(stream)));
            }
            Ok(_) => {}
            Err(error) => {
                log::warn!("http: {error}");
                sleep(EXHAUSTED).await;
            }
        }
    }
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(END, all).await.is_err() {
        log::info!("http: some connections are cut off");
    }
}

async fn connection(stream: TcpStream, patience: Duration, router: Router, phase: watch::Receiver<Phase>) {
    // Answers are written whole.
    if let Err(error) = stream.set_nodelay(true) {
        log::debug!("http: {error}");
    }
    let buffered = Buffered::default();
    let socket = Socket::new(stream, buffered.clone(), patience);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(buffered.clone());
        router.call(request.map(Body::new))
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(BUFFER_BYTES_MAX);
    let mut connection = std::pin::pin!(builder.serve_connection(socket, service));
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = Phase::Ended.reached(phase) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        log::debug!("http: a connection has ended: {error}");
    }
}

/// Answers before anything is asked, and reads what comes all the same: the answer would be lost if it were not.
async fn turn_away(mut stream: TcpStream) -> io::Result<()> {
    let body = Problem::crowded().json().to_string();
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
