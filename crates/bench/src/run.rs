//! Entry point of the MQTT generator: validates the options, sets up the threads and returns the report.
//!
//! Connections are divided over the threads round-robin, except that one thread owns a whole shared subscription,
//! because any member may receive any message.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_mqtt::packet::QoS;

use crate::coordinator::{Coordinator, Progress};
use crate::error::BenchError;
use crate::flow::{DeliveryWindow, PacketIds};
use crate::handshake::Opener;
use crate::net::{Clock, Net};
use crate::options::{Load, Options, Scenario, WindowScope};
use crate::plan::{Plan, Routing};
use crate::publisher::{InFlightLimit, Publisher};
use crate::report::Report;
use crate::sockets;
use crate::stored::{self, StoreKind};
use crate::tally::Tally;
use crate::traffic::{Setup, Traffic, slots};
use crate::wire;
use crate::worker::{Due, PHASE_OVER, Share, Shared, Worker};

/// Runs the benchmark, calling `progress` once a second, and returns the results.
///
/// # Errors
/// If the options contradict each other, a connection cannot be opened, or a system call fails. A connection that
/// breaks after the load started is part of the report instead.
pub fn run(options: &Options, progress: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
    check(options)?;
    let broker = sockets::resolve(&options.host, options.port)?;
    let mut report = Report {
        broker: broker.to_string(),
        version: options.version as u8,
        qos: options.qos as u8,
        payload_bytes: options.payload_bytes,
        idle: None,
        traffic: None,
        retained: None,
        queued: None,
        connections_broken: 0,
        first_fault: None,
    };
    let run_id = run_id();
    if options.scenario.is_some() || options.idle > 0 {
        load(options, broker, &run_id, progress, &mut report)?;
    }
    if options.retained > 0 {
        report.retained = Some(stored::run(options, broker, StoreKind::Retained, options.retained)?);
    }
    if options.queued > 0 {
        let sessions = options.subscribers.unwrap_or(1);
        let kind = if options.topics == Some(1) {
            StoreKind::AllSessions(sessions)
        } else {
            StoreKind::OneSession(sessions)
        };
        report.queued = Some(stored::run(options, broker, kind, options.queued)?);
    }
    Ok(report)
}

fn check(options: &Options) -> Result<(), BenchError> {
    let reject = |why: &str| Err(BenchError::Options(why.into()));
    if options.scenario.is_none() && options.idle == 0 && options.retained == 0 && options.queued == 0 {
        return reject("nothing to do: specify a scenario, idle connections, or messages to store");
    }
    if options.payload_bytes < Options::PAYLOAD_BYTES_MIN {
        return reject("the payload must be at least 16 bytes, for its stamp");
    }
    if options.scenario.is_some() && options.duration.is_zero() {
        return reject("the duration must be longer than 0");
    }
    if options.queued > 0 && options.qos == QoS::AtMostOnce {
        return reject("queued messages require QoS 1 or 2");
    }
    if options.threads == 0 || options.load == Load::Window(0) {
        return reject("threads and window must be at least 1");
    }
    Ok(())
}

/// Identifier of this run: letters and digits, short enough for client identifiers.
fn run_id() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}{:03x}", std::process::id() & 0xFF_FFFF, since.subsec_millis())
}

/// Runs the idle connections and the traffic scenario.
fn load(
    options: &Options,
    broker: SocketAddr,
    run_id: &str,
    progress: &mut dyn FnMut(&Progress),
    report: &mut Report,
) -> Result<(), BenchError> {
    let scenario = options.scenario.unwrap_or(Scenario::FanOut);
    let plan = Arc::new(Plan::new(scenario, options, run_id.into())?);
    let active = if options.scenario.is_some() { plan.publishers + plan.subscribers } else { 0 };
    let total = options.idle + active;
    sockets::raise_file_limit(total)?;

    let clock = Clock::start();
    let filler = wire::filler(options.payload_bytes);
    let packet_bytes_max = options.payload_bytes + 1024;
    let nets = (0..options.threads)
        .map(|_| Net::new(clock, packet_bytes_max))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| BenchError::system("epoll", error))?;
    let shared = Shared::new(plan.publishers, nets.iter().map(Net::waker).collect());
    let setup = Setup {
        slots: slots(&plan),
        plan: Arc::clone(&plan),
        version: options.version,
        qos: options.qos,
        payload_bytes: options.payload_bytes,
        windows: delivery_windows(options, &plan),
        is_window_shared: is_window_shared(options),
        threads: options.threads,
    };
    let (sender, events) = mpsc::channel();
    let mut workers = Vec::new();
    for (thread, net) in nets.into_iter().enumerate() {
        let share = share(options, &plan, thread);
        let publishers = publishers(options, &setup, &share.publishers, &filler)?;
        let traffic = Traffic::new(setup.clone(), thread, publishers, share.publishers.clone());
        let opener = Opener::new(options, broker, run_id, total);
        workers.push(Worker {
            thread,
            options,
            shared: &shared,
            clock,
            net,
            traffic,
            opener,
            share,
            filler: &filler,
            events: sender.clone(),
            due: Due::default(),
        });
    }
    drop(sender);
    let mut coordinator = Coordinator::new(options, &plan, &shared, clock, events, progress)?;
    thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| worker.run())).collect();
        let outcome = coordinator.run_phases();
        shared.advance_to(PHASE_OVER);
        let mut tally = Tally::default();
        for thread in threads {
            if let Some(part) = thread.join().expect("a worker does not panic") {
                tally.add(&part);
            }
        }
        let (idle, measured) = outcome?;
        report.idle = idle;
        report.traffic = measured.map(|measured| coordinator.traffic_report(&tally, &measured));
        report.connections_broken = tally.broken;
        report.first_fault = tally.first_fault.map(|fault| fault.0);
        Ok(())
    })
}

fn delivery_windows(options: &Options, plan: &Plan) -> Arc<[DeliveryWindow]> {
    match options.load {
        Load::Window(window) if options.window_scope == WindowScope::Run => {
            [DeliveryWindow::new(window)].into()
        }
        Load::Window(window) if options.qos == QoS::AtMostOnce => {
            (0..plan.publishers).map(|_| DeliveryWindow::new(window)).collect()
        }
        _ => Arc::new([]),
    }
}

/// Whether the run is a closed loop of all publishers together.
fn is_window_shared(options: &Options) -> bool {
    matches!(options.load, Load::Window(_)) && options.window_scope == WindowScope::Run
}

/// The connections of one thread.
fn share(options: &Options, plan: &Plan, thread: usize) -> Share {
    let own = |count: u32| (thread as u32..count).step_by(options.threads).collect();
    if options.scenario.is_none() {
        return Share { idle: own(options.idle), ..Share::default() };
    }
    let subscribers = match (plan.routing, thread) {
        // One thread tracks the whole group, because any member may receive any message.
        (Routing::Shared, 0) => (0..plan.subscribers).collect(),
        (Routing::Shared, _) => Vec::new(),
        _ => own(plan.subscribers),
    };
    let publishers = match (is_window_shared(options), thread) {
        // One thread lets all publishers send in turn.
        (true, 0) => (0..plan.publishers).collect(),
        (true, _) => Vec::new(),
        (false, _) => own(plan.publishers),
    };
    Share { idle: own(options.idle), subscribers, publishers }
}

fn publishers(
    options: &Options,
    setup: &Setup,
    numbers: &[u32],
    filler: &[u8],
) -> Result<Vec<Publisher>, BenchError> {
    let is_shared = is_window_shared(options);
    let limit = || match (options.qos, options.load) {
        (QoS::AtMostOnce, _) if is_shared => InFlightLimit::Open,
        (_, _) if is_shared => InFlightLimit::Acknowledgements(PacketIds::new(options.max_inflight)),
        (QoS::AtMostOnce, Load::Rate(_)) => InFlightLimit::Open,
        (QoS::AtMostOnce, Load::Window(_)) => InFlightLimit::Deliveries(Arc::clone(&setup.windows)),
        (_, Load::Rate(_)) => InFlightLimit::Acknowledgements(PacketIds::new(options.max_inflight)),
        (_, Load::Window(window)) => {
            InFlightLimit::Acknowledgements(PacketIds::new(window.min(u32::from(u16::MAX)) as u16))
        }
    };
    numbers
        .iter()
        .map(|number| Publisher::new(*number, &setup.plan, options.version, options.qos, limit(), filler))
        .collect::<Result<_, _>>()
        .map_err(|error| BenchError::Options(format!("PUBLISH: {error}")))
}
