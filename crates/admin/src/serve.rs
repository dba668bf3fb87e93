//! The HTTP server: one thread, named "http", with a single-threaded tokio runtime.
//!
//! Connections are limited. A new one above the limit closes the one that has been idle for longest. If all have a
//! request under way, the new one becomes a reserved connection, which answers a single request: those for health and
//! metrics, and 503 to others. [`HttpServer::drainer`] ends waiting requests before the shards shut down, and
//! [`HttpServer::end`] closes the listener after that, so that clients get a response to every request that was
//! accepted.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::service::TowerToHyperService;
use mainstem_quota::LogThrottle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use crate::access::Peer;
use crate::app::{App, Phase};
use crate::broker::Broker;
use crate::connections::{Admitted, Connection, ConnectionTable, GuardedBody, Timeouts};
use crate::gate::{Rejection, RequestGate};
use crate::head::{HEAD_BYTES_MAX, HEADERS_MAX};
use crate::listeners::{Bound, Incoming, Listeners, Stream};
use crate::problem::Problem;
use crate::routes::{monitoring_router, router};
use crate::settings::Settings;
use crate::socket::{BufferedLeases, Socket, UnreadInput};

/// Longest wait for connections to finish at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections above the limit that answer a request for health or metrics, or with 503. At this limit, too, a new one
/// closes the one that has been idle for longest.
pub const RESERVED_CONNECTIONS: usize = 64;
/// Longest time for the head of a request to arrive on a reserved connection, and for its client to read nothing.
const RESERVED_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for the response to a head that did not arrive in time.
const LAST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after `accept` failed, for example because the process has no file descriptors left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves bound listeners, at least one, on a new thread.
///
/// # Errors
/// If the operating system cannot start a thread.
pub fn start(bound: Vec<Bound>, settings: Settings, broker: Arc<dyn Broker>) -> io::Result<HttpServer> {
    let addresses = bound.iter().map(Bound::name_and_address).collect::<io::Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (sender, phase) = watch::channel(Phase::Serving);
    let serve = move || {
        let app = App::new(Arc::clone(&broker), settings.clone(), phase.clone());
        let outcome = runtime.block_on(async {
            let listeners = Listeners::new(bound)?;
            Acceptor::new(broker, &settings, app, phase).run(listeners).await;
            Ok::<(), io::Error>(())
        });
        if let Err(error) = outcome {
            log::error!("http: {error}");
        }
    };
    let thread = std::thread::Builder::new().name("http".into()).spawn(serve)?;
    Ok(HttpServer { addresses, phase: Arc::new(sender), thread })
}

/// A running server.
#[derive(Debug)]
pub struct HttpServer {
    addresses: Vec<(String, SocketAddr)>,
    phase: Arc<watch::Sender<Phase>>,
    thread: JoinHandle<()>,
}

impl HttpServer {
    /// Returns the name of each listener and its bound address.
    pub fn addresses(&self) -> &[(String, SocketAddr)] {
        &self.addresses
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

/// How the connections of one kind are served.
struct Kind {
    table: Arc<ConnectionTable>,
    router: Router,
    timeouts: Timeouts,
    is_reserved: bool,
}

/// Accepts connections, and serves each in a task of its own.
struct Acceptor {
    broker: Arc<dyn Broker>,
    phase: watch::Receiver<Phase>,
    app: App,
    regular: Kind,
    reserved: Kind,
    connections: JoinSet<()>,
    evictions: LogThrottle,
    refusals: LogThrottle,
    connections_max: usize,
}

impl Acceptor {
    fn new(broker: Arc<dyn Broker>, settings: &Settings, app: App, phase: watch::Receiver<Phase>) -> Self {
        let regular = Kind {
            table: ConnectionTable::new(settings.connections_max),
            router: router(app.clone()),
            timeouts: Timeouts { head: settings.request_timeout, idle: settings.idle_timeout },
            is_reserved: false,
        };
        let reserved = Kind {
            table: ConnectionTable::new(RESERVED_CONNECTIONS),
            router: monitoring_router(app.clone()),
            timeouts: Timeouts { head: RESERVED_TIMEOUT, idle: RESERVED_TIMEOUT },
            is_reserved: true,
        };
        Self {
            broker,
            phase,
            app,
            regular,
            reserved,
            connections: JoinSet::new(),
            evictions: LogThrottle::default(),
            refusals: LogThrottle::default(),
            connections_max: settings.connections_max,
        }
    }

    async fn run(&mut self, mut listeners: Listeners) {
        let mut stopped = std::pin::pin!(Phase::Stopped.reached(self.phase.clone()));
        loop {
            let accepted = tokio::select! {
                accepted = listeners.accept() => accepted,
                Some(_) = self.connections.join_next() => continue,
                () = &mut stopped => break,
            };
            match accepted {
                Ok((incoming, peer)) => self.admit(incoming, peer).await,
                Err(error) => {
                    log::warn!("http: accept failed: {error}");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
        drop(listeners);
        let deadline = (Instant::now() + SHUTDOWN_TIMEOUT).into();
        let all = async { while self.connections.join_next().await.is_some() {} };
        if timeout_at(deadline, all).await.is_err() {
            log::info!("http: closed {} connections with requests in flight", self.connections.len());
        }
        if timeout_at(deadline, self.app.finish_changes()).await.is_err() {
            log::warn!(
                "http: changes of queues or bindings had no reply at the shutdown; the audit log lacks them"
            );
        }
    }

    async fn admit(&mut self, incoming: Incoming, peer: SocketAddr) {
        let Some(permit) = self.broker.admit(peer.ip()) else { return };
        let max = self.connections_max;
        if self.regular.table.is_full() {
            // The other connections read what has arrived: a request makes them busy, a close makes room. The task of
            // a connection that was closed to make room frees its file descriptor.
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
        }
        let (kind, admitted) = match self.regular.table.open(self.regular.timeouts) {
            Admitted::Full => (&self.reserved, self.reserved.table.open(self.reserved.timeouts)),
            admitted => (&self.regular, admitted),
        };
        if kind.is_reserved
            && let Some(count) = self.refusals.count(Instant::now())
        {
            log::warn!(
                "http: {count} connections refused: {max} have a request under way, which is the limit of http.max_connections; health and metrics are served"
            );
        }
        let connection = match admitted {
            Admitted::Open(connection) => connection,
            Admitted::Evicting(connection) => {
                if !kind.is_reserved
                    && let Some(count) = self.evictions.count(Instant::now())
                {
                    log::warn!(
                        "http: {count} idle connections closed to make room: {max} are open, which is the limit of http.max_connections"
                    );
                }
                connection
            }
            Admitted::Full => return,
        };
        let service = serve_connection(incoming, connection, kind, self.phase.clone());
        self.connections.spawn(async move {
            service.await;
            drop(permit);
        });
    }
}

/// Returns the future that serves a connection until it closes, is evicted or expires.
fn serve_connection(
    incoming: Incoming,
    connection: Connection,
    kind: &Kind,
    phase: watch::Receiver<Phase>,
) -> impl Future<Output = ()> + Send + use<> {
    let (router, is_reserved) = (kind.router.clone(), kind.is_reserved);
    let peer = incoming.peer();
    let write_timeout = kind.timeouts.head;
    async move {
        let stream = tokio::select! {
            biased;
            () = connection.evicted() => return,
            stream = incoming.handshake() => stream,
            _ = connection.expired() => return,
            () = Phase::Stopped.reached(phase.clone()) => return,
        };
        match stream {
            Ok(stream) => {
                let peer = Peer { certificate: stream.certificate(), ..peer };
                serve_stream(stream, peer, connection, router, is_reserved, write_timeout, phase).await;
            }
            Err(error) => log::debug!("http: TLS handshake failed: {error}"),
        }
    }
}

async fn serve_stream(
    stream: Stream,
    peer: Peer,
    connection: Connection,
    router: Router,
    is_reserved: bool,
    write_timeout: Duration,
    phase: watch::Receiver<Phase>,
) {
    let buffered = BufferedLeases::default();
    let unread = if is_reserved { UnreadInput::Discard } else { UnreadInput::Reset };
    let rejection = Rejection::default();
    let gate = RequestGate::new(rejection.clone());
    let socket = Socket::new(stream, gate, connection.clone(), buffered.clone(), write_timeout, unread);
    let router = TowerToHyperService::new(router);
    let requests = connection.clone();
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        let guard = requests.begin_request();
        request.extensions_mut().insert(buffered.clone());
        request.extensions_mut().insert(rejection.clone());
        request.extensions_mut().insert(peer.clone());
        let response = router.call(request.map(Body::new));
        async move { response.await.map(|response| response.map(|body| GuardedBody { body, _guard: guard })) }
    });
    let mut builder = http1::Builder::new();
    builder.keep_alive(!is_reserved).max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    let mut http = builder.serve_connection(socket, service);
    let outcome = tokio::select! {
        biased;
        () = connection.evicted() => return,
        outcome = &mut http => outcome,
        has_head = connection.expired() => {
            if has_head {
                let stream = http.into_parts().io.into_stream();
                timeout(LAST_RESPONSE_TIMEOUT, respond_and_close(stream, &Problem::slow_head())).await.ok();
            }
            return;
        }
        () = Phase::Stopped.reached(phase) => {
            std::pin::Pin::new(&mut http).graceful_shutdown();
            http.await
        }
    };
    if let Err(error) = outcome {
        log::debug!("http: connection failed: {error}");
    }
}

/// Sends a response without a complete request, then reads until the client closes: closing a socket with unread input
/// resets the connection, and the client might lose the response.
async fn respond_and_close(mut stream: Stream, problem: &Problem) -> io::Result<()> {
    stream.write_all(problem.last_response().as_bytes()).await?;
    stream.shutdown().await?;
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).await? > 0 {}
    Ok(())
}
