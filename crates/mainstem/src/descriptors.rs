//! File descriptors: how the limit of open files is shared by logs, connections and the rest of the process.
//!
//! A connection takes a descriptor before anybody knows who it is. If connections could take all of them, every write
//! that opens a file would fail, and acknowledged messages with it. Each part therefore gets a share at start: the
//! logs, the HTTP API, and what remains for the connections of the other listeners. The shares are enforced where
//! descriptors are taken: the cache of open segments, the limit of HTTP connections, and
//! [`Admission`](mainstem_runtime::Admission).

/// Descriptors of a store beside its segments: journal, checkpoint, directory, and files that are written and renamed.
const PER_STORE: usize = 8;
/// Descriptors of everything else: poll instances, listeners, standard streams, the lock of the data directory.
const OTHER: usize = 64;
/// Most segments that a store keeps open. The files that its journal waits for can be as many again.
const SEGMENTS_MAX: usize = 1024;
const SEGMENTS_MIN: usize = 8;
/// Connections that every configuration must have room for.
const CONNECTIONS_MIN: usize = 32;
/// MQTT connections beyond `mqtt.max_connections` that are still accepted, so that a CONNECT can be answered with the
/// reason. Further ones are closed at once.
const REFUSED_WITH_REASON_MAX: usize = 1024;

/// What the configuration asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// `mqtt.max_connections`.
    pub(crate) mqtt: usize,
    /// `kafka.max_connections`; 0 without a Kafka listener.
    pub(crate) kafka: usize,
    /// Most descriptors of HTTP connections.
    pub(crate) http: usize,
    /// Number of stores.
    pub(crate) stores: usize,
}

/// The shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorPlan {
    /// The limit of open files.
    pub(crate) limit: usize,
    /// Segments that each store keeps open.
    pub(crate) segments_per_store: usize,
    /// Connections of all listeners but HTTP.
    pub(crate) connections: usize,
    /// MQTT connections that are served.
    pub(crate) mqtt: usize,
    /// MQTT connections that are accepted: those beyond `mqtt` are told that there are too many.
    pub(crate) mqtt_accepted: usize,
    /// Kafka connections.
    pub(crate) kafka: usize,
}

impl DescriptorPlan {
    /// Divides `limit` descriptors.
    ///
    /// # Errors
    /// The limit is too low to run. Names the least that works.
    pub(crate) fn new(limit: u64, wanted: Wanted) -> Result<Self, String> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let fixed = OTHER + PER_STORE * wanted.stores + wanted.http;
        let segment_files = 2 * wanted.stores;
        let least = fixed + SEGMENTS_MIN * segment_files + CONNECTIONS_MIN;
        let Some(spare) = limit.checked_sub(least) else {
            return Err(format!(
                "the limit of open files is {limit}, and the least that works here is {least}; raise it (ulimit -n, LimitNOFILE)"
            ));
        };
        // Logs get up to half of what is left.
        let more_segments = (spare / 2 / segment_files.max(1)).min(SEGMENTS_MAX - SEGMENTS_MIN);
        let segments_per_store = SEGMENTS_MIN + more_segments;
        let connections = CONNECTIONS_MIN + spare - more_segments * segment_files;
        let with_reason = REFUSED_WITH_REASON_MAX.min(connections / 8);
        let mqtt = wanted.mqtt.min(connections - with_reason);
        Ok(Self {
            limit,
            segments_per_store,
            connections,
            mqtt,
            mqtt_accepted: mqtt + with_reason,
            kafka: wanted.kafka.min(connections),
        })
    }

    /// Logs the shares, and warns if the configuration asks for more connections than there is room for.
    pub(crate) fn log(&self, wanted: Wanted) {
        let Self { limit, segments_per_store, connections, .. } = self;
        let logs = segments_per_store * 2 * wanted.stores;
        log::info!("open files: {limit} allowed, {logs} reserved for logs, {connections} for connections");
        for (key, asked, given) in [
            ("mqtt.max_connections", wanted.mqtt, self.mqtt),
            ("kafka.max_connections", wanted.kafka, self.kafka),
        ] {
            if given < asked {
                log::warn!(
                    "{key} = {asked} does not fit into the limit of open files, {limit}: at most {given} connections are served; raise the limit (ulimit -n, LimitNOFILE) or lower {key}"
                );
            }
        }
    }

    /// What to change if there are too many connections, for the log.
    pub(crate) fn hint(&self) -> String {
        format!("raise the limit of open files, {} (ulimit -n, LimitNOFILE)", self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted = Wanted { mqtt: 100_000, kafka: 100_000, http: 320, stores: 2 };

    #[test]
    fn a_high_limit_gives_everything_that_is_asked_for() {
        let plan = DescriptorPlan::new(1 << 20, WANTED).unwrap();
        assert_eq!((plan.segments_per_store, plan.mqtt, plan.kafka), (1024, 100_000, 100_000));
        assert_eq!(plan.mqtt_accepted, 101_024);
    }

    #[test]
    fn the_shares_never_exceed_the_limit() {
        for limit in (0..3_000).chain([4_096, 20_000, 65_536, u64::MAX >> 1]) {
            for stores in [1, 2, 8, 64] {
                let wanted = Wanted { stores, ..WANTED };
                let Ok(plan) = DescriptorPlan::new(limit, wanted) else {
                    assert!(limit < 2_200, "{limit} for {stores} stores");
                    continue;
                };
                let files = 2 * stores * plan.segments_per_store + PER_STORE * stores + OTHER;
                assert_eq!((files + wanted.http + plan.connections) as u64, limit.max(files as u64));
                assert!(plan.connections >= CONNECTIONS_MIN && plan.segments_per_store >= SEGMENTS_MIN);
                assert!(plan.mqtt < plan.mqtt_accepted && plan.mqtt_accepted <= plan.connections);
                assert!(plan.kafka <= plan.connections);
            }
        }
    }

    #[test]
    fn too_low_a_limit_names_the_least_that_works() {
        let error = DescriptorPlan::new(200, WANTED).unwrap_err();
        let least: u64 = error.split(' ').find_map(|word| word.strip_suffix(';')?.parse().ok()).unwrap();
        assert!(DescriptorPlan::new(least - 1, WANTED).is_err());
        assert!(DescriptorPlan::new(least, WANTED).is_ok());
    }
}
