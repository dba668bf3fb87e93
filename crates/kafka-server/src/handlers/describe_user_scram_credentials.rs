//! `DescribeUserScramCredentials`, version 0: which users have SCRAM keys, of which mechanism and with how many
//! iterations (KIP-554).

use std::collections::BTreeMap;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_user_scram_credentials::{
    CredentialInfo, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult, UserName,
};
use mainstem_runtime::Io;
use mainstem_security::{Action, ScramAlgorithm, SecurityState, User};

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// The mechanisms by their number in the protocol, from 1 on.
const ALGORITHMS: [ScramAlgorithm; 2] = [ScramAlgorithm::Sha256, ScramAlgorithm::Sha512];

/// The mechanism with this number in the protocol.
pub(crate) fn algorithm_of(number: i8) -> Option<ScramAlgorithm> {
    let at = usize::try_from(number).ok()?.checked_sub(1)?;
    ALGORITHMS.get(at).copied()
}

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeUserScramCredentialsRequest,
) {
    if let Err(code) = call.check_cluster(Action::Describe) {
        let response = DescribeUserScramCredentialsResponse {
            error_code: code as i16,
            ..DescribeUserScramCredentialsResponse::default()
        };
        return shard.reply::<DescribeUserScramCredentialsRequest>(io, &call, &response);
    }
    let state =
        shard.env.shared().security().map(|security| security.host.published().state()).unwrap_or_default();
    let results = match request.users.filter(|users| !users.is_empty()) {
        Some(users) => requested(&state, &users),
        None => state.all_users().map(|user| describe(user)).filter(has_keys).collect(),
    };
    let response = DescribeUserScramCredentialsResponse { results, ..Default::default() };
    shard.reply::<DescribeUserScramCredentialsRequest>(io, &call, &response);
}

fn has_keys(result: &DescribeUserScramCredentialsResult) -> bool {
    !result.credential_infos.is_empty()
}

fn requested(state: &SecurityState, users: &[UserName]) -> Vec<DescribeUserScramCredentialsResult> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for user in users {
        *counts.entry(&user.name).or_default() += 1;
    }
    let result = |(name, count): (&str, usize)| {
        let (code, message) = if count > 1 {
            let twice = "Cannot describe SCRAM credentials for the same user twice in a single request";
            (ErrorCode::DuplicateResource, format!("{twice}: {name}"))
        } else {
            let described = state.user(name).map(|user| describe(user)).filter(has_keys);
            if let Some(described) = described {
                return described;
            }
            let unknown = "Attempt to describe a user credential that does not exist";
            (ErrorCode::ResourceNotFound, format!("{unknown}: {name}"))
        };
        DescribeUserScramCredentialsResult {
            user: name.to_owned(),
            error_code: code as i16,
            error_message: Some(message),
            credential_infos: Vec::new(),
        }
    };
    counts.into_iter().map(result).collect()
}

fn describe(user: &User) -> DescribeUserScramCredentialsResult {
    let info = |(number, algorithm): (i8, ScramAlgorithm)| {
        let keys = user.scram(algorithm)?;
        Some(CredentialInfo { mechanism: number, iterations: keys.iterations().cast_signed() })
    };
    DescribeUserScramCredentialsResult {
        user: user.name.to_string(),
        credential_infos: (1..).zip(ALGORITHMS).filter_map(info).collect(),
        ..Default::default()
    }
}
