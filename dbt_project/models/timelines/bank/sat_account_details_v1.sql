{#- Written by `lakehouse scaffold`, its own while unchanged: b34997a338a77167 -#}
{{ cdc_vault.timeline(
  source_model='sat_account_details',
  src_pk='hk_account',
  src_hashdiff='hd_account_details',
  src_payload=['currency', 'balance', 'created_at'],
) }}
