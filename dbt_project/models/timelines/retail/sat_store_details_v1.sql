{#- Written by `lakehouse scaffold`, its own while unchanged: 03f5c742229d94dc -#}
{{ cdc_vault.timeline(
  source_model='sat_store_details',
  src_pk='hk_store',
  src_hashdiff='hd_store_details',
  src_payload=['store_name', 'city', 'state', 'opened_at'],
) }}
