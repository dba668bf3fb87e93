//! `SaslHandshake` (key 17): chooses the SASL mechanism.

request!(SaslHandshakeRequest => SaslHandshakeResponse, key 17, versions 0..=1);

message! {
    pub struct SaslHandshakeRequest {
        mechanism: String;
    }
}

message! {
    pub struct SaslHandshakeResponse {
        error_code: i16;
        mechanisms: Vec<String>;
    }
}
