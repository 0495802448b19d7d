{#- Written by `lakehouse scaffold`, its own while unchanged: 03fb311476ffe59d -#}
{{ cdc_vault.timeline(
  source_model='eff_sat_account_user',
  src_pk='hk_account_user',
  src_hashdiff='is_active',
  src_payload=['hk_account'],
) }}
