{#- Written by `lakehouse scaffold`, its own while unchanged: 480863bb8a57edbe -#}
{{ timeline(
  source_model='sat_account_details',
  src_pk='hk_account',
  src_hashdiff='hd_account_details',
  src_payload=['currency', 'balance', 'created_at'],
) }}
