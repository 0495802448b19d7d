{#- Written by `lakehouse scaffold`, its own while unchanged: 0f461f41de293db6 -#}
{{ timeline(
  source_model='eff_sat_account_user',
  src_pk='hk_account_user',
  src_hashdiff='is_active',
  src_payload=['hk_account'],
) }}
