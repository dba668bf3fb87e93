//! `AlterUserScramCredentials`: sets and deletes SCRAM credentials of users (KIP-554).

api! {
    AlterUserScramCredentials, key 51, versions 0..=0, flexible 0..;

    request AlterUserScramCredentialsRequest {
        deletions: Vec<ScramCredentialDeletion>;
        upsertions: Vec<ScramCredentialUpsertion>;
    }

    struct ScramCredentialDeletion {
        name: String;
        mechanism: i8;
    }

    struct ScramCredentialUpsertion {
        name: String;
        mechanism: i8;
        iterations: i32;
        salt: Vec<u8>;
        salted_password: Vec<u8>;
    }

    response AlterUserScramCredentialsResponse {
        throttle_time_ms: i32;
        results: Vec<AlterUserScramCredentialsResult>;
    }

    struct AlterUserScramCredentialsResult {
        user: String;
        error_code: i16;
        error_message: Option<String>;
    }
}
