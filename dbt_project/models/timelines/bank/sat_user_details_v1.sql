{#- Written by `lakehouse scaffold`, its own while unchanged: 89bf1bc6d999b955 -#}
{{ cdc_vault.timeline(
  source_model='sat_user_details',
  src_pk='hk_user',
  src_hashdiff='hd_user_details',
  src_payload=['email', 'name', 'created_at'],
) }}
