//! `SaslAuthenticate` (key 36): carries the tokens of a SASL mechanism (KIP-152).

request!(SaslAuthenticateRequest => SaslAuthenticateResponse, key 36, versions 0..=2, flexible 2..);

message! {
    pub struct SaslAuthenticateRequest {
        auth_bytes: Vec<u8>;
    }
}

message! {
    pub struct SaslAuthenticateResponse {
        error_code: i16;
        error_message: Option<String>;
        auth_bytes: Vec<u8>;
        session_lifetime_ms: i64, in 1..;
    }
}
