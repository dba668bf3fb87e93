//! The `[jwt]` section of the configuration: tokens that log clients in.

use std::path::PathBuf;
use std::time::Duration;

use mainstem_auth::{TokenRules, TokenSettings, Tokens};
use mainstem_mqtt_server::settings;

settings! {
    /// Tokens (JWT) that log clients in. See security.md.
    pub struct JwtConfig {
        /// The secret of HS256, HS384 and HS512, of 32 bytes or more; empty for none. Set it by `MAINSTEM_JWT__SECRET`
        /// rather than in a file that others can read.
        secret: String = "", [secret];
        /// File with such a secret; empty for none.
        secret_file: String = "";
        /// PEM file with public keys, RSA, P-256, P-384 or Ed25519; empty for none.
        public_key_file: String = "";
        /// File with a JSON Web Key set; empty for none.
        jwks_file: String = "";
        /// URL of a JSON Web Key set, with https, or with http on this machine; empty for none.
        jwks_url: String = "";
        /// PEM file with the authorities that are trusted for `jwks_url`; empty for those of the system.
        jwks_ca_file: String = "";
        /// How often all keys are read again, in seconds.
        jwks_refresh_interval_s: u32 = 3_600_u32, in 10 ..= 604_800;
        /// How soon keys are read again for a token whose key is not known, in seconds.
        jwks_min_refresh_interval_s: u32 = 30_u32, in 1 ..= 86_400;
        /// Longest time for `jwks_url` to answer, in ms.
        jwks_timeout_ms: u32 = 5_000_u32, in 100 ..= 60_000;
        /// Issuers of accepted tokens (iss); empty for any.
        issuers: Vec<String> = Vec::new();
        /// Audiences of accepted tokens (aud), of which a token must have one; empty for any.
        audiences: Vec<String> = Vec::new();
        /// Tolerated difference of clocks for exp and nbf, in seconds.
        leeway_s: u32 = 30_u32, in 0 ..= 3_600;
        /// The claim that is the user. Dots lead into objects.
        user_claim: String = "sub";
        /// The claim that is the roles of the user, beside those of the user store: an array, or a text with spaces
        /// between roles. Dots lead into objects, as in `realm_access.roles`. Empty for none.
        roles_claim: String = "";
    }
}

impl JwtConfig {
    /// Whether tokens are accepted: there is a source of keys.
    pub(crate) fn is_enabled(&self) -> bool {
        [&self.secret, &self.secret_file, &self.public_key_file, &self.jwks_file, &self.jwks_url]
            .iter()
            .any(|source| !source.is_empty())
    }

    /// Checks what the bounds leave open.
    pub(crate) fn check_more(&self) -> Result<(), (&'static str, String)> {
        if self.user_claim.is_empty() {
            return Err(("user_claim", "names no claim".into()));
        }
        if !self.jwks_ca_file.is_empty() && self.jwks_url.is_empty() {
            return Err(("jwks_ca_file", "has no effect without jwks_url".into()));
        }
        let rules = !self.issuers.is_empty() || !self.audiences.is_empty() || !self.roles_claim.is_empty();
        if rules && !self.is_enabled() {
            let what =
                "no token is accepted without secret, secret_file, public_key_file, jwks_file or jwks_url";
            return Err(("issuers, audiences, roles_claim", what.into()));
        }
        Ok(())
    }

    /// Reads the keys; `None` if no tokens are accepted.
    ///
    /// # Errors
    /// A message for the user: a file or the URL is invalid.
    pub(crate) fn open(&self) -> Result<Option<Tokens>, String> {
        if !self.is_enabled() {
            return Ok(None);
        }
        let file = |path: &String| (!path.is_empty()).then(|| PathBuf::from(path));
        let seconds = |count: u32| Duration::from_secs(count.into());
        let settings = TokenSettings {
            rules: TokenRules {
                issuers: self.issuers.clone(),
                audiences: self.audiences.clone(),
                leeway_s: self.leeway_s.into(),
                user_claim: self.user_claim.clone(),
                roles_claim: self.roles_claim.clone(),
            },
            secret: (!self.secret.is_empty()).then(|| self.secret.clone()),
            secret_file: file(&self.secret_file),
            public_key_file: file(&self.public_key_file),
            jwks_file: file(&self.jwks_file),
            jwks_url: (!self.jwks_url.is_empty()).then(|| self.jwks_url.clone()),
            jwks_ca_file: file(&self.jwks_ca_file),
            refresh: seconds(self.jwks_refresh_interval_s),
            refresh_min: seconds(self.jwks_min_refresh_interval_s),
            timeout: Duration::from_millis(self.jwks_timeout_ms.into()),
        };
        Tokens::open(settings).map(Some)
    }
}
