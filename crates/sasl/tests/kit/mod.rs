//! A SCRAM client, written from RFC 5802 alone. The fuzz target uses it too.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use mainstem_security::ScramAlgorithm;

pub(crate) struct Client<'a> {
    pub(crate) algorithm: ScramAlgorithm,
    pub(crate) user: &'a str,
    pub(crate) password: &'a str,
    pub(crate) nonce: &'a str,
    pub(crate) gs2_header: &'a str,
}

impl Client<'_> {
    fn first_bare(&self) -> String {
        let name = self.user.replace('=', "=3D").replace(',', "=2C");
        format!("n={name},r={}", self.nonce)
    }

    pub(crate) fn first(&self) -> String {
        format!("{}{}", self.gs2_header, self.first_bare())
    }

    /// The last message, and the message that the server must then send.
    pub(crate) fn last(&self, server_first: &str) -> (String, String) {
        let mut attributes = server_first.split(',');
        let nonce = attributes.next().unwrap().strip_prefix("r=").unwrap();
        let salt = BASE64.decode(attributes.next().unwrap().strip_prefix("s=").unwrap()).unwrap();
        let iterations = attributes.next().unwrap().strip_prefix("i=").unwrap().parse().unwrap();
        assert!(
            nonce.len() > self.nonce.len() && nonce.starts_with(self.nonce) && attributes.next().is_none()
        );

        let algorithm = self.algorithm;
        let salted = algorithm.salted_password(self.password.as_bytes(), &salt, iterations);
        let client_key = algorithm.hmac(&salted, b"Client Key");
        let stored_key = algorithm.hash(&client_key);
        let without_proof = format!("c={},r={nonce}", BASE64.encode(self.gs2_header));
        let auth_message = format!("{},{server_first},{without_proof}", self.first_bare());
        let signature = algorithm.hmac(&stored_key, auth_message.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(&signature).map(|(key, bit)| key ^ bit).collect();
        let server_key = algorithm.hmac(&salted, b"Server Key");
        let server_signature = BASE64.encode(algorithm.hmac(&server_key, auth_message.as_bytes()));
        (format!("{without_proof},p={}", BASE64.encode(proof)), format!("v={server_signature}"))
    }
}
