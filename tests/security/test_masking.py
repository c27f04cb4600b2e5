"""Secrets are masked by name and by shape; what only sounds like one is left alone."""

import json
import time

import pytest

from trimtab.masking import MASK, is_secret, masked, masked_text

HIDDEN = "Zx9secretQ7vaLue4"
HEX40 = "3f9a0c1d2e4b5a69788796a5b4c3d2e1f0a1b2c3"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N"
# put together here, so that no scanner of repositories takes this file for a leak
SLACK_URL = "https://hooks.slack." + "com/services/T00000000/B00000000/abcdefXYZ123"
DISCORD_URL = "https://discord." + "com/api/webhooks/1234567890/abcdefXYZ-123_q"
PEM = "-----BEGIN RSA PRIVATE" + " KEY-----\nMIIEowIBAAKCAQEA\nabc=\n-----END RSA PRIVATE KEY-----"

_SECRET_NAMES = """
api_key apikey API_KEY api-key apiKey openai_api_key OPENAI_API_KEY WANDB_API_KEY wandb_key
COMET_API_KEY NEPTUNE_API_TOKEN HF_TOKEN hf_token HUGGING_FACE_HUB_TOKEN HUGGINGFACE_TOKEN
hub_token push_to_hub_token use_auth_token auth_token access_token refresh_token id_token
GITHUB_TOKEN GH_TOKEN GITLAB_TOKEN SLACK_BOT_TOKEN AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
AWS_SESSION_TOKEN aws_secret_access_key password passwd db_password dbPassword PGPASSWORD
MLFLOW_TRACKING_PASSWORD MLFLOW_TRACKING_TOKEN passphrase db_pwd smtp_pass secret client_secret
app.secret AZURE_CLIENT_SECRET AZURE_STORAGE_KEY azure_storage_account_key GOOGLE_API_KEY
ANTHROPIC_API_KEY CLEARML_API_SECRET_KEY KAGGLE_KEY private_key ssh_private_key signing_key
encryption_key authorization Authorization proxy_authorization cookie set-cookie session_token
credentials basic_auth logger/wandb/api_key trainer.logger.apiKey x-api-key x_auth_token
connection_string webhook_token vault_token registry_token SECRET_KEY token tracking_token
"""
SECRET_NAMES = _SECRET_NAMES.split()

_HARMLESS_NAMES = """
tokens_seen tokenizer num_tokens max_token max_tokens pad_token_id eos_token eos_token_id
bos_token pad_token unk_token mask_token sep_token cls_token image_token special_tokens
additional_special_tokens tokens_per_step tokens_per_second loss_per_token flops_per_token
num_key_value_heads key_value_heads key_dim n_keys key query_key_norm qk_norm kv_channels
tokenizer_type tokenizer_name_or_path token_type_ids token_dropping max_new_tokens
use_fast_tokenizer train_tokens total_tokens decoder_start_token first_token next_token
attention_dropout author authors authority pass num_passes forward_pass bypass passthrough
monkey keyboard keys sort_key cache_keys s3_key secretary compass auth_method keep_last
api_version api_url password_file token_path secret_name api_key_env credentials_path
sigma signature_size hook_url cookies_enabled PWD OLDPWD tokens key_padding_mask global_step
batch_tokens target_tokens vocab_token image_token_index wandb_project AWS_REGION AWS_PROFILE
"""
HARMLESS_NAMES = _HARMLESS_NAMES.split()

SECRET_TEXTS = [
    f"/run/secrets/db_password: {HIDDEN}",
    f"/run/secrets/db_password={HIDDEN}",
    f"sk-proj-{HEX40}",
    f"sk-ant-api03-{HEX40}",
    "sk" + f"_live_{HEX40}",
    f"hf_{HEX40}",
    f"ghp_{HEX40}",
    f"github_pat_11AA_{HEX40}",
    f"glpat-{HEX40[:20]}",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "AIza" + HEX40[:35],
    "xoxb-" + "123456789012-abcdefGHI",
    f"nvapi-{HEX40}",
    JWT,
    PEM,
    PEM.replace("\n", "\\n"),
    PEM.partition("\n-----END")[0],
    f"api_key={HIDDEN}",
    f"api_key = '{HIDDEN}'",
    f'"api_key": "{HIDDEN}"',
    f"{{'api_key': '{HIDDEN}', 'lr': 1}}",
    f"WANDB_API_KEY={HIDDEN} python train.py",
    f'os.environ["HF_TOKEN"] = "{HIDDEN}"',
    f"export MLFLOW_TRACKING_PASSWORD={HIDDEN}",
    f"train.py --api-key {HIDDEN} --lr 1",
    f"train.py --api-key={HIDDEN} --lr 1",
    f"train.py --token {HIDDEN}",
    f"train.py --password '{HIDDEN} {HIDDEN}'",
    f"train.py logger.wandb.api_key={HIDDEN}",
    f"+wandb.key=1 ++hub.token={HIDDEN}",
    f"password: {HIDDEN}",
    "password=12345678",
    f"postgres://me:{HIDDEN}@db.example.org/x",
    f"s3://{HIDDEN}{HIDDEN}@bucket/x",
    f"https://{HIDDEN}{HIDDEN}@sentry.example.org/4",
    f"redis://:{HIDDEN}@host:6379/0",
    SLACK_URL,
    f"posting to {SLACK_URL} failed",
    DISCORD_URL,
    f"--webhook https://example.org/hooks/{HIDDEN}",
    f"webhook_url: https://example.org/hooks/{HIDDEN}",
    f"Authorization: Bearer {HIDDEN}",
    f"Authorization: Basic {HIDDEN}==",
    f'headers = {{"Authorization": "token {HIDDEN}"}}',
    f"Bearer {HIDDEN}",
    f"Cookie: session={HIDDEN}; other={HIDDEN}",
    f"https://example.org/data?sig={HIDDEN}&x=1",
    f"https://example.org/data?x=1&X-Amz-Signature={HIDDEN}",
    f"https://example.org/data?x=1&X-Amz-Credential={HIDDEN}",
    f"https://example.org/v1?key={HIDDEN}",
    f"https://example.org/v1?access_token={HIDDEN}#top",
    f"error: cannot log in (secret={HIDDEN})",
    f"[api_key={HIDDEN}]",
    f"aws_secret_access_key = {HIDDEN}",
    f"client_secret:{HIDDEN}",
    f"hub_token={HIDDEN},seed=1",
    f"db-password={HIDDEN}",
    f"dbPassword={HIDDEN}",
    f"apiKey => {HIDDEN}",
    f"token={HIDDEN}",
    f"my.token: {HIDDEN}",
    f"AccountName=x;AccountKey={HIDDEN}==;Suffix=core",
]

HARMLESS_TEXTS = [
    "cat: /etc/passwd: Permission denied",
    "./secrets/token: No such file or directory",
    "eos_token='<|endoftext|>'",
    'pad_token: "[PAD]"',
    "tokenizer=meta-llama/Llama-3.1-8B",
    "tokens_seen: 123456789",
    "num_tokens=4096",
    "token: 5",
    "token 12345678 of 90000000",
    "Unexpected token: expected_comma",
    "unexpected token '}' in line 4",
    "KeyError: 'loss'",
    "missing key: loss",
    "keys: step, loss, grad_norm",
    "sort_key=step",
    "num_key_value_heads=8",
    "--num-key-value-heads 8",
    "--tokenizer-type SentencePiece",
    "--max-tokens 1000000000",
    "--eos-token-id 50256",
    "api_key=${WANDB_API_KEY}",
    "api_key=$WANDB_API_KEY",
    "token: ${oc.env:HF_TOKEN}",
    "password: null",
    "hub_token=None",
    "use_auth_token=True",
    "auth: 401",
    "auth=none",
    "the password was not given",
    "set HF_TOKEN to a token of the hub",
    "no API key is configured",
    "secret: <your secret>",
    "https://example.org/a/b?x=1&step=2",
    "git@github.com:org/repo.git",
    "ssh://git@github.com/org/repo",
    "http://localhost:8080/path@2",
    "see https://example.org/@user/page",
    "s3://bucket/key/of/object",
    "a:b@c",
    "loss 2.5 | grad norm 1.2e-3 | lr: 6e-05",
    "2024-01-01 12:00:00,123 INFO step=100 loss=2.345",
    "basic block, basic understanding of basics",
    "Basic internationalization support",
    "bearer of news",
    "author: Someone Else",
    "forward_pass: 1.23s",
    "pass=3/5",
    "sk-learn==1.5",
    "hf_transfer enabled",
    "task-specific-learning-rate-schedule-of-the-run",
    "risk-adjusted-return-of-this-run",
    "desk-1234567890",
    "step-00001200/manifest.json",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit 157f6d3aa0c1d2e4b5a69788796a5b4c3d2e1f0a",
    "uuid=123e4567-e89b-12d3-a456-426614174000",
    "checkpoint: /data/runs/secret-project/step-100",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBg\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nMIIBIjANBg\n-----END CERTIFICATE-----",
    "password_file=/run/secrets/db",
    "wandb.project=keyboard-tokens",
    "token_dropping=0.5, image_token=32000",
    "cookies_enabled=false",
    "monkey=banana123",
    "auth_method=kerberos5x",
    "decoder_start_token=abcdef123",
    "key=value pairs; key: value",
]


def test_the_tables_are_large() -> None:
    assert len(SECRET_NAMES) >= 60
    assert len(HARMLESS_NAMES) >= 60
    assert len(SECRET_TEXTS) >= 60
    assert len(HARMLESS_TEXTS) >= 60


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_secret_name_masks_its_value(name: str) -> None:
    assert is_secret(name)
    assert masked({name: HIDDEN}) == {name: MASK}
    assert masked({"logger": [{name: HIDDEN}]}) == {"logger": [{name: MASK}]}
    assert masked(HIDDEN, name=name) == MASK
    assert HIDDEN not in masked_text(f"{name}={HIDDEN}")
    assert HIDDEN not in masked_text(f'"{name}": "{HIDDEN}"')
    assert HIDDEN not in json.dumps(masked(["train.py", f"--{name}", HIDDEN, "--lr", "1"]))


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_a_harmless_name_masks_nothing(name: str) -> None:
    for value in (4096, 0.5, True, None, "gpt2", HIDDEN):
        assert masked({name: value}) == {name: value}
        assert masked_text(f"{name}={value}") == f"{name}={value}"
    assert masked(["train.py", f"--{name}", HIDDEN]) == ["train.py", f"--{name}", HIDDEN]


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_a_secret_in_a_text_is_masked(text: str) -> None:
    shown = masked_text(text)
    assert MASK in shown
    for part in (HIDDEN, HEX40, HEX40[:20], "12345678", JWT, "MIIE", "abcdefXYZ", "abcdefGHI"):
        assert part not in shown
    assert masked_text(shown) == shown
    assert masked({"note": [text]}) == {"note": [shown]}


@pytest.mark.parametrize("text", HARMLESS_TEXTS)
def test_a_harmless_text_stays(text: str) -> None:
    assert masked_text(text) == text


@pytest.mark.parametrize("value", ["", "none", "True", "${X}", "$X", "***", "<key>", None, False])
def test_a_reference_or_a_switch_is_no_secret(value: object) -> None:
    assert masked({"api_key": value}) == {"api_key": value}


def test_all_under_a_secret_name_is_masked_and_the_rest_keeps_its_form() -> None:
    document = {"lr": 6e-5, "credentials": {"user": "me", "pin": [1, 2.5]}, "n": (1, "a")}
    assert masked(document) == {
        "lr": 6e-5,
        "credentials": {"user": MASK, "pin": [MASK, MASK]},
        "n": (1, "a"),
    }


def test_a_host_stays_where_only_the_path_is_secret() -> None:
    assert masked_text(SLACK_URL) == f"https://hooks.slack.com/{MASK}"
    told = masked({"webhook": "https://example.org/x/y"})
    assert told == {"webhook": f"https://example.org/{MASK}"}
    assert masked_text("postgres://me:pw@h/x") == f"postgres://me:{MASK}@h/x"


@pytest.mark.parametrize(
    "part",
    ["key=", 'key="', "api_key: ", "--api-key ", "://a:", "eyJ", "token" * 40, "-----BEGIN "],
)
def test_hostile_text_takes_no_time(part: str) -> None:
    start = time.process_time()
    masked_text(part * (200_000 // len(part)))
    masked({part * 1_000: part * 1_000})
    assert time.process_time() - start < 2.0
