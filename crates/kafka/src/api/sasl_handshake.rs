//! `SaslHandshake`: chooses the SASL mechanism of a connection (KIP-43). After version 0, messages of the mechanism
//! follow as bare frames; after version 1, as `SaslAuthenticate` requests (KIP-152).

api! {
    SaslHandshake, key 17, versions 0..=1;

    request SaslHandshakeRequest {
        mechanism: String;
    }

    response SaslHandshakeResponse {
        error_code: i16;
        mechanisms: Vec<String>;
    }
}
