//! The CONNECT packet: client identifier, session, will, properties.

use mainstem_mqtt::packet::{Connect, UserProperties, Version, Will};

use super::failure::Failure;
use super::properties::{Properties, borrowed};
use super::target::Target;
use crate::cli::ConnectArgs;

/// Target and contents of CONNECT.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    args: &'a ConnectArgs,
    pub(crate) target: Target,
    pub(crate) properties: Properties,
    client_id: String,
    /// Session Expiry Interval, seconds.
    expiry: Option<u32>,
}

impl<'a> Session<'a> {
    /// Combines the flags with the properties parsed from them. `tool` becomes part of generated client identifiers.
    ///
    /// # Errors
    /// If the flags contradict each other or the protocol version.
    pub(crate) fn new(args: &'a ConnectArgs, properties: Properties, tool: &str) -> Result<Self, Failure> {
        let v5 = args.protocol == Version::V5;
        let delayed = args.will.will_delay.is_some();
        if !v5 && (!properties.is_empty() || args.session_expiry.is_some() || delayed) {
            return Err(Failure::new("properties, session expiry and will delay need protocol version 5"));
        }
        let own_id = args.id.is_some() || args.id_prefix.is_some();
        if args.keep_session && !own_id {
            return Err(Failure::new("-c requires --id: the session is stored under the client identifier"));
        }
        let never = (v5 && args.keep_session).then_some(u32::MAX);
        let expiry = args.session_expiry.or(properties.connect.session_expiry).or(never);
        let client_id = match (&args.id, &args.id_prefix) {
            (Some(id), _) => id.clone(),
            (None, Some(prefix)) => format!("{prefix}{}", std::process::id()),
            (None, None) if v5 => String::new(),
            (None, None) => format!("mainstem{tool}{}", std::process::id()),
        };
        Ok(Self { args, target: Target::new(args)?, properties, client_id, expiry })
    }

    /// Calls `send` with the CONNECT packet.
    pub(crate) fn with_connect<T>(&self, send: impl FnOnce(Connect<'_>) -> T) -> T {
        let will_user = borrowed(&self.properties.will.user);
        let will = &self.args.will;
        let connect = &self.properties.connect;
        let user = borrowed(&connect.user);
        send(Connect {
            clean_start: !self.args.keep_session,
            keep_alive: self.args.keep_alive,
            will: will.will_topic.as_deref().map(|topic| Will {
                qos: will.will_qos,
                retain: will.will_retain,
                topic,
                payload: will.will_payload.as_deref().unwrap_or_default().as_bytes(),
                delay_interval: will.will_delay.or(self.properties.will_delay),
                properties: self.properties.will.packet(&will_user),
            }),
            username: self.target.username.as_deref(),
            password: self.target.password.as_deref().map(str::as_bytes),
            session_expiry: self.expiry,
            receive_maximum: connect.receive_maximum,
            maximum_packet_size: connect.maximum_packet_size,
            topic_alias_maximum: connect.topic_alias_maximum,
            request_response_information: connect.request_response_information,
            request_problem_information: connect.request_problem_information,
            authentication_method: connect.authentication_method.as_deref(),
            authentication_data: connect.authentication_data.as_deref(),
            user_properties: UserProperties::Pairs(&user),
            ..Connect::new(self.args.protocol, &self.client_id)
        })
    }

    pub(crate) fn args(&self) -> &'a ConnectArgs {
        self.args
    }
}
