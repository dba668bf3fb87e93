//! `SaslAuthenticate`: carries a message of the SASL mechanism (KIP-152); its response says how long the session lasts
//! (KIP-368).

api! {
    SaslAuthenticate, key 36, versions 0..=2, flexible 2..;

    request SaslAuthenticateRequest {
        auth_bytes: Vec<u8>;
    }

    response SaslAuthenticateResponse {
        error_code: i16;
        error_message: Option<String>;
        auth_bytes: Vec<u8>;
        session_lifetime_ms: i64, in 1..;
    }
}
